// GET /feed: a URL by which the page reads the feed for five minutes. The token stays here.
const { STREAMD_URL, STREAMD_TOKEN, STREAM } = process.env

export async function GET() {
  // Your login decides here who may read.
  const answer = await fetch(`${STREAMD_URL}/auth/sign`, {
    method: "POST",
    headers: { Authorization: `Bearer ${STREAMD_TOKEN}`, "Content-Type": "application/json" },
    body: JSON.stringify({ url: `${STREAMD_URL}/v1/stream/${STREAM}`, expires_in_s: 300 }),
  })
  if (!answer.ok) return new Response("The feed cannot be read now.", { status: 502 })
  return Response.json(await answer.json(), { headers: { "Cache-Control": "no-store" } })
}
