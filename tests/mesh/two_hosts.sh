#!/usr/bin/env bash
# Runs tandem on two hosts: two network namespaces of this machine with a cable between them, and a second network each
# that nobody may listen on. It checks that the weights are those of one process, that nothing listens beyond the cable,
# that ranks of other launchers meet, who ends, and how, when the cable is cut or the secrets differ, that a host may
# have rollout workers alone, that bytes on the cable are encrypted, and that another user of a host cannot disturb the
# ranks.
#
#   tests/mesh/two_hosts.sh build/dev/src/cli/tandem [--all]
# --all runs it with the variables of torchrun, Slurm and Open MPI too.
# It needs root and network namespaces; where it may not have them it says so and ends with code 77.
set -uo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "$1")
here=$(mktemp -d -p /var/tmp)  # each host has a /tmp of its own, as machines do
hosts=(tandem_a_$$ tandem_b_$$)
addresses=(10.77.0.1 10.77.0.2)
timeout_s=6  # --distributed-timeout-minutes 0.1
failures=0

clean_up() {
  for host in "${hosts[@]}"; do
    ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null
    ip netns del "$host" 2>/dev/null
  done
  rm -rf "$here"
}
trap clean_up EXIT
trap "exit 1" TERM INT
skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

build_hosts() {
  command -v ip >/dev/null && command -v ss >/dev/null || skip "no ip and ss (iproute2)"
  for host in "${hosts[@]}"; do ip netns add "$host" 2>/dev/null || skip "network namespaces are not allowed here"; done
  ip link add cable netns "${hosts[0]}" type veth peer name cable netns "${hosts[1]}" || skip "no veth"
  ip link add office netns "${hosts[0]}" type veth peer name office netns "${hosts[1]}"
  for i in 0 1; do
    ip -n "${hosts[$i]}" addr add "${addresses[$i]}/24" dev cable
    ip -n "${hosts[$i]}" addr add "10.78.0.$((i + 1))/24" dev office
    for link in lo cable office; do ip -n "${hosts[$i]}" link set "$link" up; done
  done
}

# on HOST COMMAND...: there, in the background, with its output in $here/out.HOST. Adds to pids.
on() {
  local i=$1
  shift
  ip netns exec "${hosts[$i]}" unshare --mount sh -c 'mount -t tmpfs tmpfs /tmp && exec "$@"' sh \
    env OMP_WAIT_POLICY=passive "$@" >"$here/out.$i" 2>&1 &
  pids[$i]=$!
}
# both CODE WHAT: waits for both, which are to end with that code.
both() {
  for i in 0 1; do
    wait "${pids[$i]}"
    local code=$?
    [ $code = "$1" ] || { fail "$2: host $i ended with code $code, not $1"; tail -n 20 "$here/out.$i"; }
  done
}
train() {  # the arguments of a short run, but for --save
  echo train --colocate --hf-checkpoint tests/golden/models/qwen3-tied --prompt-data tests/golden/prompts/math_small.jsonl \
    --custom-rm-path "$here/reward.py:reward" --rollout-batch-size 3 --n-samples-per-prompt 4 --global-batch-size 6 \
    --num-rollout 2 --rollout-max-response-len 12 --lr 1e-3 --no-use-tensorboard --dtype float32 \
    --max-tokens-per-gpu 64 --num-threads 1 --save-interval 1 --distributed-timeout-minutes 0.1 "$@"
}
# launch HOST ARGUMENTS...: tandem launch, as on each of two machines, with per_host processes on each.
per_host=1
launch() {
  local i=$1
  shift
  on "$i" "$program" launch --nnodes 2 --node-rank "$i" --nproc-per-node $per_host --master-addr 10.77.0.1 --master-port 29500 -- "$@"
}
without_colocate() { sed 's/ --colocate / /'; }
same_weights() {
  cmp -s "$here/alone/hf/latest/model.safetensors" "$here/$1/hf/latest/model.safetensors" ||
    fail "$1: weights are not those of one process"
}
# Notes the addresses at which somebody listens, for as long as both run.
watch_listeners() {
  while kill -0 "${pids[0]}" 2>/dev/null && kill -0 "${pids[1]}" 2>/dev/null; do
    for host in "${hosts[@]}"; do ip netns exec "$host" ss -Hltn; done | awk '{print $4}' >>"$here/listening"
    sleep 0.05
  done
}

run_alone() {
  # shellcheck disable=SC2046
  OMP_WAIT_POLICY=passive "$program" $(train --save "$here/alone") >"$here/out.0" 2>&1 ||
    { tail "$here/out.0"; fail "one process"; }
}

trains_alike_and_is_closed() {
  local i
  for i in 0 1; do TANDEM_SECRET_FILE=$here/secret launch "$i" $(train --save "$here/two"); done
  watch_listeners
  both 0 "two hosts"
  same_weights two
  local strangers
  strangers=$(sed 's/:[0-9]*$//' "$here/listening" | sort -u | grep -v -e '^10\.77\.0\.[12]$' -e '^127\.')
  [ -z "$strangers" ] || fail "somebody listens at $strangers"
  grep -q '^10\.77\.0\.1:29500$' "$here/listening" || fail "nobody was seen listening at 10.77.0.1:29500"
}

# Writes every packet of the cable into a file, until it is killed.
listen_to_cable() {
  exec ip netns exec "${hosts[0]}" python3 -c '
import socket, sys
cable = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
cable.bind(("cable", 0))
while True:
    sys.stdout.buffer.write(cable.recv(1 << 17))
    sys.stdout.buffer.flush()' >"$1"
}
# What a piece of a tensor begins with in the clear: mesh/socket_communicator.cc, Header.
has_pieces_in_the_clear() { LC_ALL=C grep -aqP '\x01nat\x00{4}' "$1"; }

only_a_trusted_cable_is_talked_on_in_the_clear() {
  local i listener kind
  for kind in secret trust; do
    listen_to_cable "$here/heard.$kind" &
    listener=$!
    for i in 0 1; do
      if [ $kind = secret ]; then
        TANDEM_SECRET_FILE=$here/secret launch "$i" $(train --save "$here/heard_$kind")
      else
        launch "$i" $(train --save "$here/heard_$kind" --trust-network)
      fi
    done
    both 0 "$kind"
    kill $listener
    wait $listener 2>/dev/null
    same_weights "heard_$kind"
    [ -s "$here/heard.$kind" ] || fail "$kind: nothing was heard on the cable"
  done
  has_pieces_in_the_clear "$here/heard.trust" || fail "trust: pieces are not known on the cable; this test is blind"
  ! has_pieces_in_the_clear "$here/heard.secret" || fail "secret: pieces cross the cable in the clear"
}

# Connects to whatever listens on host 0, as another user, and says what is no word of a rank, until it is killed.
disturb() {
  exec ip netns exec "${hosts[0]}" python3 -c '
import encodings.idna, os, socket, time  # the first while its file can be read
os.setgroups([]); os.setgid(4321); os.setuid(4321)
kept, count = [], 0
while True:
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        words = line.split()
        if words[3] != "0A":  # listening
            continue
        address, port = words[1].split(":")
        try:
            place = socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)
            stranger = socket.create_connection(place, timeout=1)
            says = [b"", b"TDM2OPEN" + b"0" * 32 + b"00000001", b"\x16\x03\x01 no record of TLS", os.urandom(100)]
            stranger.sendall(says[count % 4])
            kept.append(stranger)
            count += 1
            print(place[1], flush=True)
        except OSError:
            pass
    del kept[:-50]
    time.sleep(0.001)' >"$here/disturbed"
}

another_user_of_a_host_disturbs_nobody() {
  local i stranger try
  # The ranks listen for milliseconds: on a busy machine the other user may come too late, and tries again.
  for try in 1 2 3 4 5; do
    disturb &
    stranger=$!
    sleep 0.5  # until it has begun
    for i in 0 1; do TANDEM_SECRET_FILE=$here/secret launch "$i" $(train --save "$here/disturbed_run_$try"); done
    both 0 "another user"
    kill $stranger
    wait $stranger 2>/dev/null
    same_weights "disturbed_run_$try"
    [ "$(sort -u "$here/disturbed" | wc -l)" -ge 2 ] && return
  done
  fail "another user: found no port of a rank"
}

other_launchers_are_understood() {
  local i name
  for name in torchrun slurm openmpi; do
    for i in 0 1; do
      case $name in
        torchrun) set -- RANK=$i WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 ;;
        slurm) set -- SLURM_STEP_ID=0 SLURM_JOB_ID=7 SLURM_PROCID=$i SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NODEID=$i \
          "SLURM_TASKS_PER_NODE=1(x2)" SLURM_STEP_NODELIST=10.77.0.1,10.77.0.2 ;;
        openmpi) set -- OMPI_COMM_WORLD_RANK=$i OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 \
          OMPI_COMM_WORLD_LOCAL_SIZE=1 ;;
      esac
      [ $name = slurm ] || set -- "$@" MASTER_ADDR=10.77.0.1 MASTER_PORT=29501
      on "$i" "$@" "$program" $(train --save "$here/$name" --actor-num-nodes 2 --trust-network --network-interface cable)
    done
    both 0 "$name"
    same_weights "$name"
  done
}

a_cut_cable_ends_both() {
  local i
  for i in 0 1; do TANDEM_SECRET_FILE=$here/secret launch "$i" $(train --save "$here/cut" --num-rollout 1000); done
  for _ in $(seq 600); do [ -e "$here/cut/samples/rollout_000001.jsonl" ] && break; sleep 0.1; done
  ip -n "${hosts[0]}" link set cable down
  local begin=$SECONDS
  both 3 "a cut cable"
  [ $((SECONDS - begin)) -le $((timeout_s + 10)) ] || fail "a cut cable: ended after $((SECONDS - begin)) s"
  for i in 0 1; do
    grep -q "rank $((1 - i))" "$here/out.$i" || { fail "a cut cable: host $i does not name rank $((1 - i))"; cat "$here/out.$i"; }
  done
  ip -n "${hosts[0]}" link set cable up
}

strangers_are_refused() {
  local i
  head -c 32 /dev/urandom >"$here/other_secret"
  TANDEM_SECRET_FILE=$here/secret launch 0 $(train --save "$here/refused")
  TANDEM_SECRET_FILE=$here/other_secret launch 1 $(train --save "$here/refused")
  both 2 "two secrets"
  grep -q "TANDEM_SECRET_FILE: 'rank/1'" "$here/out.0" || { fail "two secrets: host 0 does not say so"; cat "$here/out.0"; }
  grep -q "TANDEM_SECRET_FILE: 'rank/0'" "$here/out.1" || { fail "two secrets: host 1 does not say so"; cat "$here/out.1"; }
  for i in 0 1; do launch "$i" $(train --save "$here/refused"); done
  both 2 "no secret"
  grep -q "TANDEM_SECRET_FILE" "$here/out.0" || fail "no secret: the remedy is not named"
}

# Host 1 has rollout workers alone.
workers_sample_for_another_host() {
  local i
  for i in 0 1; do
    TANDEM_SECRET_FILE=$here/secret launch "$i" $(train --rollout-num-gpus 1 --save "$here/worker" | without_colocate)
  done
  : >"$here/listening"
  watch_listeners
  both 0 "a worker on another host"
  same_weights worker
  grep -q 'worker 0 (process [0-9]*) has joined' "$here/out.0" || { fail "a worker on another host"; cat "$here/out.0"; }
  local strangers
  strangers=$(sed 's/:[0-9]*$//' "$here/listening" | sort -u | grep -v -e '^10\.77\.0\.[12]$' -e '^127\.')
  [ -z "$strangers" ] || fail "somebody listens at $strangers"
}

# Host 0 trains a model that is spread over two processes, and host 1 has an engine of two that samples with it.
an_engine_of_two_samples_for_another_host() {
  local i
  "$program" $(train --actor-num-gpus-per-node 2 --tensor-model-parallel-size 2 --save "$here/spread") >"$here/out.0" 2>&1 ||
    { fail "two processes"; cat "$here/out.0"; }
  per_host=2
  for i in 0 1; do
    TANDEM_SECRET_FILE=$here/secret launch "$i" \
      $(train --rollout-num-gpus 2 --tensor-model-parallel-size 2 --save "$here/engine" | without_colocate)
  done
  per_host=1
  both 0 "an engine on another host"
  cmp -s "$here/spread/hf/latest/model.safetensors" "$here/engine/hf/latest/model.safetensors" ||
    fail "an engine on another host: weights are not those of --colocate"
}

# There are three workers, two of them on host 1: the run continues with the one that is left.
a_cut_cable_costs_workers() {
  local i
  per_host=2
  local arguments
  arguments=$(train --rollout-num-gpus 3 --save "$here/fewer" --num-rollout 8 --rollout-health-check-timeout 2 |
    without_colocate)
  TANDEM_SECRET_FILE=$here/secret "$program" $(train --save "$here/alone_8" --num-rollout 8) >"$here/out.0" 2>&1
  for i in 0 1; do TANDEM_SECRET_FILE=$here/secret launch "$i" $arguments; done
  per_host=1
  for _ in $(seq 600); do [ "$(grep -c 'has joined' "$here/out.0")" = 3 ] && break; sleep 0.05; done
  ip -n "${hosts[0]}" link set cable down
  local begin=$SECONDS
  wait "${pids[0]}" || { fail "a cut cable ends a run that has a worker left"; cat "$here/out.0"; }
  grep -q '"fault/lost_workers":[1-9]' "$here/fewer/metrics.jsonl" || fail "a cut cable: no worker was lost"
  cmp -s "$here/alone_8/hf/latest/model.safetensors" "$here/fewer/hf/latest/model.safetensors" ||
    fail "a cut cable changes weights"
  wait "${pids[1]}"
  [ $? = 3 ] || { fail "a cut cable: host 1 does not end with code 3"; cat "$here/out.1"; }
  [ $((SECONDS - begin)) -le $((timeout_s + 15)) ] || fail "a cut cable: ended after $((SECONDS - begin)) s"
  ip -n "${hosts[0]}" link set cable up
}

umask 077
build_hosts
head -c 32 /dev/urandom >"$here/secret"
printf 'def reward(prompts, completions, **kwargs):\n    return [float(len(c[0]["content"]) %% 5) for c in completions]\n' \
  >"$here/reward.py"
declare -a pids
run_alone
questions=(trains_alike_and_is_closed only_a_trusted_cable_is_talked_on_in_the_clear
  another_user_of_a_host_disturbs_nobody a_cut_cable_ends_both strangers_are_refused workers_sample_for_another_host
  an_engine_of_two_samples_for_another_host a_cut_cable_costs_workers)
[ "${2:-}" != --all ] || questions+=(other_launchers_are_understood)
for question in "${questions[@]}"; do
  begin=$SECONDS
  $question
  echo "$question: $((SECONDS - begin)) s"
done
[ $failures = 0 ] && echo "two hosts: all passed"
exit $((failures > 0))
