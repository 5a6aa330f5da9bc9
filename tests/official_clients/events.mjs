// Prints what a browser's EventSource hears at a URL, and what becomes of the connection.
const source = new EventSource(process.argv[2])
source.addEventListener("open", () => console.log("open"))
source.addEventListener("data", (event) => console.log(event.data))
source.addEventListener("error", () => {
  console.log(source.readyState === EventSource.CLOSED ? "closed" : "again")
})
