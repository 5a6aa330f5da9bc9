-- Appends to the one stream that the URL names. Argument: the size of each append in bytes.
function init(args)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/octet-stream"
  wrk.body = string.rep("a", tonumber(args[1]))
  -- Rendered once: every request is the same.
  local fixed = wrk.format()
  request = function() return fixed end
end
