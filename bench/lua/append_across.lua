-- Appends in a scattered order to the existing streams <prefix>1 … <prefix>N.
-- Arguments: the path prefix, N, the size of each append in bytes.
require("tails")

function init(args)
  local prefix, streams = args[1], tonumber(args[2])
  local body = string.rep("b", tonumber(args[3]))
  local headers = { ["Content-Type"] = "application/octet-stream" }
  local rendered = {}
  for stream = 1, streams do
    rendered[stream] = wrk.format("POST", prefix .. stream, headers, body)
  end
  -- A prime far from N: every stream is visited before one is visited again, neighbours apart.
  local step, position = 7919, 0
  request = function()
    position = (position + step) % streams
    return rendered[position + 1]
  end
end
