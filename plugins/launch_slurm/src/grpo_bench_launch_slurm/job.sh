
# ------------------------------------------------------------------------------------------------------------------
# What is done with it: Ray's nodes start, one on each host of the allocation, then the driver on the first; its exit
# code is the job's. However the job ends, all of that ends with it, in less than a minute. With arguments this file is
# one of the functions below, as steps on other hosts call them.

say() { printf '%(%FT%T%z)T launch: %s\n' -1 "$*"; }
note() { printf '%(%FT%T%z)T %s %s %s\n' -1 "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$*" >> "$folder/attempts.log"; }
fail() { say "$*" >&2; exit 1; }
alive() { [[ -n $1 ]] && kill -0 "$1" 2>/dev/null; }

# step [OPTION ...] -- FUNCTION [WORD ...]: run a function of this file on hosts of the allocation, in the job's
# environment and in its container. It replaces the shell that calls it: a step in the background is its srun.
step() {
    local options=()
    while [[ $1 != -- ]]; do options+=("$1"); shift; done
    shift
    exec srun --overlap --cpu-bind=none --kill-on-bad-exit=0 --wait=0 --chdir="$folder" "${options[@]}" \
        "${container[@]}" "${within[@]}" env "${environment[@]}" bash "$folder/$script" "$@" < /dev/null
}

# A step says under NAME which it is, so that its processes can be sent signals: srun passes SIGTERM on as SIGKILL.
mark() { printf '%s' "$SLURM_STEP_ID" > "$folder/.step-$SLURM_JOB_ID-$1"; }
signal() {
    local number
    number=$(cat "$folder/.step-$SLURM_JOB_ID-$1" 2>/dev/null) || return 1  # it has not begun
    timeout 10 scancel --signal="$2" "$SLURM_JOB_ID.$number" 2>/dev/null || true  # 22.05 sends it and says it could not
}

# The network domain of the host that asks: the switch or block above it, or the host itself where nobody says.
domain() {
    local above=${SLURM_TOPOLOGY_ADDR:-}
    above=${above%"$SLURMD_NODENAME"}
    above=${above%.}
    above=${above##*.}
    printf '%s' "${above:-$SLURMD_NODENAME}" | tr -c 'A-Za-z0-9._-' -
}

place() { printf '%s %s\n' "$(domain)" "$SLURMD_NODENAME"; }

# driver COMMAND: what the job is for.
driver() { mark driver; exec "$@"; }

# ray_node NAME [OPTION ...]: one node of Ray, until it ends or is told to. One that ends before it is up is started
# again: where many start at once, or the host is busy, Ray gives up after 30 s, which no setting changes.
ray_node() {
    local scratch=/tmp/ray.$SLURM_JOB_ID.$1$SLURM_PROCID code=1 node="" told=false try
    mark "$1"
    shift
    trap 'told=true; kill "$node" || true' TERM
    for try in 1 2 3 4 5; do
        if [[ $told == true ]]; then break; fi
        ray start --block --disable-usage-stats --temp-dir="$scratch" --num-cpus="$SLURM_CPUS_ON_NODE" \
            --num-gpus="$gpus" --object-store-memory="$object_store" \
            --labels="grpo-bench-node=$SLURMD_NODENAME,grpo-bench-domain=$(domain)" "$@" > >(tee "$scratch.out") 2>&1 &
        node=$!
        code=0
        wait "$node" || code=$?
        wait "$node" || code=$?  # the first one ends early where a signal comes
        if [[ $told == true ]] || grep -q "Ray runtime started" "$scratch.out"; then break; fi
        say "Ray on $SLURMD_NODENAME ended with $code before it was up, at start $try of 5"
        rm -rf "$scratch"
    done
    rm -rf "$scratch" "$scratch.out"
    return "$code"
}

# An address of a host that others reach: the first that is not the loopback.
address() {
    local named found
    named=$(scontrol show node --oneliner "$1" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
    found=$(getent ahostsv4 "${named:-$1}" | awk '$1 !~ /^127\./ { print $1; exit }') || true
    [[ -n $found ]] || found=$(hostname -I | awk '{ print $1 }')  # the first host's own name may be the loopback's
    printf '%s' "$found"
}

write_topology() {
    local lines
    lines=$(timeout "$start_s" srun --overlap --ntasks-per-node=1 bash "$folder/$script" place < /dev/null) ||
        fail "a host of this job does not answer; nothing was started"
    sort -k1,1V -k2,2V <<< "$lines" | awk '
        $1 != last { printf "%s\n  \"%s\": [", (NR == 1 ? "{" : "],"), $1; last = $1; comma = "" }
        { printf "%s\"%s\"", comma, $2; comma = ", " }
        END { print "]\n}" }' > "$topology"
}

start_ray() {
    local port=$((20000 + SLURM_JOB_ID % 10000)) others=$((${#hosts[@]} - 1)) deadline
    write_topology
    head_address=$(address "$head_host") || true
    [[ -n $head_address ]] || fail "no address of $head_host is known that others could reach"
    (umask 077; head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' > "$token")
    environment+=(
        GRPO_BENCH_TOPOLOGY="$topology"
        RAY_ADDRESS="$head_address:$port" RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$token"
        # No processes before they are asked for, none ended for the memory that a run's workers hold, a host's death
        # seen within seconds, no long good-byes.
        RAY_enable_worker_prestart=0 RAY_prestart_worker_first_driver=0 RAY_memory_monitor_refresh_ms=0
        RAY_health_check_initial_delay_ms=5000 RAY_health_check_period_ms=1000
        RAY_health_check_timeout_ms=2000 RAY_health_check_failure_threshold=3
        RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 RAY_gcs_rpc_server_reconnect_timeout_s=5
    )
    say "Ray starts at $head_address:$port on $head_host, then on $others more hosts"
    step -N1 -n1 -w "$head_host" -- ray_node head --head --port="$port" \
        --node-ip-address="$head_address" --include-dashboard=false >> "$ray_log" 2>&1 &
    head_step=$!
    deadline=$((SECONDS + start_s))
    until (: > "/dev/tcp/$head_address/$port") 2>/dev/null; do
        alive "$head_step" || fail "Ray's first node ended before it could be reached; the end of $ray_log:" \
            $'\n'"$(tail -n 20 "$ray_log")"
        ((SECONDS < deadline)) || fail "Ray's first node could not be reached in $start_s s; see $ray_log"
        sleep 0.2
    done
    ((others)) || return 0
    step -N"$others" -n"$others" --ntasks-per-node=1 -w "$(IFS=,; echo "${hosts[*]:1}")" -- \
        ray_node other --address="$head_address:$port" >> "$ray_log" 2>&1 &
    other_step=$!
}

# What the driver has to do: begin, or go on with what an earlier start of this job left.
choose() {
    local folders=("$folder"/*/profile.json) run=""
    if ((${#folders[@]})); then run=${folders[0]%/profile.json}; fi
    if [[ $purpose == evaluate ]]; then
        [[ -n $run ]] || fail "$folder holds no run to evaluate"
        driver_command=(grpo-bench eval "$run")
    elif [[ -z $run ]]; then
        driver_command=("${first_command[@]}")
    elif ! tail -n 1 "$run/events.jsonl" 2>/dev/null | grep -q '"kind": *"run_ended".*"status": *"trained"'; then
        driver_command=(grpo-bench resume "${resume_options[@]}" "$run")
    elif ((${#resume_options[@]})); then
        say "the training in $run is over; grpo-bench eval evaluates it"
        exit 0
    else
        driver_command=(grpo-bench eval "$run")
    fi
}

# The driver's exit code is left in ``code``.
drive() {
    local deadline=0
    say "the driver on $head_host: ${driver_command[*]}"
    step -N1 -n1 -w "$head_host" -- driver "${driver_command[@]}" &
    driver_step=$!
    while alive "$driver_step"; do
        if [[ $ray == true ]] && ! { alive "$head_step" && { ((${#hosts[@]} == 1)) || alive "$other_step"; }; }; then
            if ((deadline == 0)); then
                deadline=$((SECONDS + 60))
                say "Ray's nodes have ended, so the driver gets 60 s to end as well; see $ray_log" >&2
            fi
            ((SECONDS < deadline)) || fail "the driver did not end after Ray's nodes had"
        fi
        sleep 0.5
    done
    code=0
    wait "$driver_step" || code=$?
}

# The wall time is near: the driver ends in a way that can be gone on from, and the job goes back into the queue.
before_the_end() {
    leaving=true
    say "the wall time is near: SIG$stop_signal to the driver"
    if alive "$driver_step"; then signal driver "$stop_signal" || true; fi
}

ended_by_slurm() {
    say "SIGTERM: cancelled, pre-empted, or out of time" >&2
    exit 143
}

# As grpo-bench launch cancel asks for it: the driver first, while Ray is still there.
ended_by_user() {
    say "to be cancelled" >&2
    cancelled=true
    exit 143
}

# stop NAME SECONDS PID: SIGTERM to a step, and its end by force after a grace time.
stop() {
    local deadline=$((SECONDS + $2))
    alive "$3" || return 0
    signal "$1" TERM || kill "$3" 2>/dev/null || true
    while alive "$3" && ((SECONDS < deadline)); do sleep 0.2; done
    alive "$3" || return 0
    say "the step '$1' did not end in $2 s: SIGKILL" >&2
    kill "$3" 2>/dev/null || true
}

finish() {
    local code=$?
    trap '' TERM USR1
    trap 'cancelled=true' USR2
    stop driver 20 "$driver_step"
    if alive "$other_step"; then signal other TERM || true; fi  # both at once
    stop head 15 "$head_step"
    stop other 1 "$other_step"
    rm -f "$token" "$folder/.step-$SLURM_JOB_ID-"*
    if [[ $leaving == true && $requeues == true && $cancelled == false ]] && ((code == 130)); then
        note requeued
        say "interrupted before the wall time: back into the queue"
        scontrol requeue "$SLURM_JOB_ID" && exit 0
        say "it could not be requeued; sbatch $folder/$script goes on with it" >&2
    fi
    note "ended $code"
    say "exit code $code"
    if [[ $cancelled == true ]]; then scancel "$SLURM_JOB_ID" || true; fi
    exit "$code"
}

if (($#)); then
    "$@"
    exit
fi

driver_step="" head_step="" other_step="" leaving=false cancelled=false code=1
token=$folder/.ray-token-$SLURM_JOB_ID ray_log=$folder/ray-$SLURM_JOB_ID.log topology=$folder/topology-$SLURM_JOB_ID.json
set -E
trap 'say "exit code $? of: $BASH_COMMAND" >&2' ERR
trap finish EXIT
trap ended_by_slurm TERM
trap ended_by_user USR2
trap before_the_end USR1
shopt -s nullglob
overlays=(PYTHONPATH PYTHONHOME PYTHONUSERBASE LD_PRELOAD)
unset "${overlays[@]}" "${!RAY_@}" "${!GRPO_BENCH_@}"  # whoever submitted may have set them

note started
rm -f "$folder/.step-$SLURM_JOB_ID-"*  # of an earlier start of this job, where that was killed
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head_host=${hosts[0]}
say "job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)), on ${#hosts[@]} hosts: $SLURM_JOB_NODELIST"
set +u  # what a site runs here may know nothing of unset variables
setup
set -u
if ((${#container[@]} + ${#within[@]})); then unset "${overlays[@]}"; fi  # of what a setup loads for its host
choose
if [[ $ray == true ]]; then start_ray; fi
if [[ $leaving == true ]]; then fail "the wall time was near before the driver could start"; fi
drive
exit "$code"
