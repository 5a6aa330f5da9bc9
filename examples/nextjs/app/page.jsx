import { Feed } from "./feed"

export default function Page() {
  return (
    <main>
      <h1>News</h1>
      <Feed />
    </main>
  )
}
