-- Creates the streams <prefix>1, <prefix>2, …, one per request. Argument: the path prefix.
require("tails")

function init(args)
  local prefix = args[1]
  local headers = { ["Content-Type"] = "application/octet-stream" }
  local asked = 0
  request = function()
    asked = asked + 1
    return wrk.format("PUT", prefix .. asked, headers)
  end
end
