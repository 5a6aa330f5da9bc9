-- Creates the streams <prefix>1, <prefix>2, …, one per request, and stops after LIMIT answers.
-- Arguments: the path prefix, LIMIT (0: until the time is over).
function init(args)
  local prefix, limit = args[1], tonumber(args[2])
  local headers = { ["Content-Type"] = "application/octet-stream" }
  local asked, answered = 0, 0
  request = function()
    asked = asked + 1
    return wrk.format("PUT", prefix .. asked, headers)
  end
  -- Only where it is needed: wrk is slower when a script looks at the answers.
  if limit > 0 then
    response = function()
      answered = answered + 1
      if answered == limit then wrk.thread:stop() end
    end
  end
end
