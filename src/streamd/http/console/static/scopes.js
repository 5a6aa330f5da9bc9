// What a credential permits, so that the console offers nothing else. The server judges each request
// by itself; this is for the eye only.

// Names the whole server, as the server does.
export const SERVER = "\0"

/**
 * Whether some scope has a verb and matches a target: `bucket/stream`, `bucket/`, `SERVER`, or for
 * `operate` a path. Where nobody has to say who they are there are no scopes, and all is permitted.
 *
 * @param {string[] | null} scopes @param {string} verb @param {string} target
 */
export function permits(scopes, verb, target) {
  return scopes === null || scopes.some((scope) => matches(scope, verb, target))
}

/** @param {string} scope @param {string} verb @param {string} target */
function matches(scope, verb, target) {
  if (!scope.startsWith(`${verb}:`)) return false
  const pattern = scope.slice(verb.length + 1)
  return pattern.endsWith("*") ? target.startsWith(pattern.slice(0, -1)) : target === pattern
}
