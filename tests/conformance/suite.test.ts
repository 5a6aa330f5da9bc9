import { runConformanceTests } from "@durable-streams/server-conformance-tests"

runConformanceTests({
  baseUrl: process.env.STREAMD_TEST_URL!,
  subscriptions: process.env.STREAMD_TEST_SUBSCRIPTIONS === "true",
})
