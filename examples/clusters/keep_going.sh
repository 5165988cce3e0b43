#!/bin/bash
# keep_going.sh RUN COMMAND...: exit code 0: the run is finished; 75: it was stopped and can be continued; anything
# else is the command's own.
run=$1
shift
"$@" &
pid=$!
trap 'kill -TERM $pid' TERM
wait $pid
code=$?
while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done
[ $code -eq 143 ] && exit 75  # SIGTERM before anything was saved
[ $code -ne 0 ] && exit $code
for _ in 1 2 3 4 5; do  # on a host that does not write it, the log may be seconds old
  tail -n 3 "$run/log.txt" | grep -q '  done after' && exit 0
  sleep 1
done
exit 75
