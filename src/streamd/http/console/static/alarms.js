// What is wrong, and what to do about it: judged by what the leader reports.

import { addressOf } from "./address.js"
import { count, duration } from "./format.js"

/**
 * @typedef {{level: "bad" | "wait", what: string, advice: string, page: string, at?: string}} Alarm
 *   `page` is a section of docs/operations.md, `at` the address of the console's page about it
 */

const SILENT_MS = 3000
const FAR_BEHIND = 1000
const ARCHIVE_LAG_MS = 300_000
// As the alerts in config/prometheus; a delivery that failed once may succeed at its next attempt.
const FAILED_MS = 60_000
const FAILED_LONG_MS = 600_000
const WAITING_MS = 300_000

/** @param {any} status `/cluster/status` @param {any} cold `/cluster/cold`, or null @returns {Alarm[]} */
export function alarmsOf(status, cold) {
  return [
    ...ofCluster(status),
    ...(status.members ?? []).flatMap(ofMember),
    ...(status.subscriptions ? ofSubscriptions(status.subscriptions) : []),
    ...(cold ? ofColdStore(cold) : []),
  ]
}

/** @param {any} status @returns {Alarm[]} */
function ofCluster(status) {
  /** @type {Alarm[]} */
  const found = []
  if (status.leader_id === null) {
    found.push({ level: "bad", what: "No leader is known", advice: "Nothing is written until a majority of the voters is connected: start those that are down.", page: "No leader" })
  }
  if (status.membership && status.membership !== "member") {
    found.push({ level: "bad", what: `Node ${status.node_id}: ${status.membership}`, advice: status.advice ?? "", page: "Adding, removing, replacing" })
  }
  if (status.disk?.low) {
    found.push({ level: "bad", what: `The disk of node ${status.node_id} is nearly full`, advice: "Writes are refused while it leads: make room.", page: "A disk that fills up" })
  }
  const operation = status.operation
  if (operation && ["paused", "waiting_for_operator", "failed"].includes(operation.state)) {
    const how = { paused: "is paused", waiting_for_operator: "waits for you", failed: "failed" }[/** @type {string} */ (operation.state)]
    const advice = operation.why && `${operation.why[0].toUpperCase()}${operation.why.slice(1)}.`
    found.push({ level: "wait", what: `Operation ${operation.id} (${operation.kind}) ${how}`, advice, page: "Operations", at: addressOf("operation", [String(operation.id)]) })
  }
  return found
}

/** @param {any} member @returns {Alarm[]} */
function ofMember(member) {
  const node = `Node ${member.node_id}`
  /** @type {Alarm[]} */
  const found = []
  if (member.last_contact_ms > SILENT_MS || member.connected === false) {
    found.push({ level: "bad", what: `${node} is silent`, advice: `Is its process running, and is ${member.peer_address} reachable from the others?`, page: "StreamdPeerSilent" })
  } else if (member.behind_entries > FAR_BEHIND) {
    found.push({ level: "wait", what: `${node} lags ${count(member.behind_entries)} entries`, advice: "It catches up by itself unless its disk or network is too slow.", page: "A node that lags far" })
  }
  if (member.lacks) {
    found.push({ level: "bad", what: `${node} runs a release that is too old`, advice: `It does not understand: ${member.lacks}. Upgrade it.`, page: "Upgrading" })
  }
  return found
}

/** @param {any} told @returns {Alarm[]} */
function ofSubscriptions({ waiting, failed, pending_streams, oldest_waiting_ms, oldest_failed_ms }) {
  /** @type {Alarm[]} */
  const found = []
  const pending = `Streams with records that no worker has acknowledged: ${count(pending_streams)}.`
  const add = (/** @type {"bad" | "wait"} */ level, /** @type {string} */ what, /** @type {string} */ advice, /** @type {string} */ page) =>
    found.push({ level, what, advice: `${advice} ${pending}`, page, at: addressOf("subscriptions") })
  if (oldest_failed_ms >= FAILED_MS) {
    add(
      oldest_failed_ms >= FAILED_LONG_MS ? "bad" : "wait",
      failed === 1 ? "The wakes of a subscription fail" : `The wakes of ${count(failed)} subscriptions fail`,
      `The oldest has been tried for ${duration(oldest_failed_ms)}, and is tried again within a minute. The page of the subscription says why: mend its receiver, or create its wake stream.`,
      "StreamdWakesFail",
    )
  }
  if (oldest_waiting_ms >= WAITING_MS) {
    add(
      "wait",
      waiting === 1 ? "No worker comes to a subscription" : `No worker comes to ${count(waiting)} subscriptions`,
      `The oldest wake has waited for ${duration(oldest_waiting_ms)}. Start the workers; nothing is lost until they come.`,
      "StreamdWakesWait",
    )
  }
  return found
}

/** @param {any} cold @returns {Alarm[]} */
function ofColdStore(cold) {
  /** @type {Alarm[]} */
  const found = []
  const add = (/** @type {"bad" | "wait"} */ level, /** @type {string} */ what, /** @type {string} */ advice) =>
    found.push({ level, what, advice, page: "The cold store" })
  if (cold.unavailable_ms !== null) add("wait", "The cold store does not answer", "Appends go on until the hot limit is reached; old records cannot be read.")
  if (cold.backpressure) add("bad", "Appends are refused", cold.backpressure)
  if (cold.last_error) add("wait", `The task ${cold.last_error.task} fails`, cold.last_error.message)
  if (cold.scrub.missing_objects || cold.scrub.damaged_objects) add("bad", "Objects are missing or damaged", "Restore them from the store's own versions or copies, and scrub again.")
  const archive = cold.archive
  if (archive?.gaps?.length) add("bad", "The archive has gaps", "It cannot restore every time: see the page of the cold store.")
  if (archive?.set_back) add("bad", "The archive was set back", archive.set_back)
  if (archive?.lag_ms > ARCHIVE_LAG_MS) add("wait", "The archive lags", "If all nodes were lost now, so much would be lost.")
  return found
}
