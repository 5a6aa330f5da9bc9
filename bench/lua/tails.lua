-- Required by every script, and a script by itself: prints the latencies of the run's percentiles,
-- a line each. wrk's own `--latency` ends at the 99th.
function done(_, latency)
  for _, percent in ipairs({ 50, 90, 99, 99.9 }) do
    print(string.format("latency %g%% %d us", percent, latency:percentile(percent)))
  end
end
