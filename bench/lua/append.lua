-- Appends to the one stream that the URL names. Arguments: the size of each append in bytes, and a
-- token, if the server requires one.
require("tails")

function init(args)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/octet-stream"
  if args[2] then wrk.headers["Authorization"] = "Bearer " .. args[2] end
  wrk.body = string.rep("a", tonumber(args[1]))
  -- Rendered once: every request is the same.
  local fixed = wrk.format()
  request = function() return fixed end
end
