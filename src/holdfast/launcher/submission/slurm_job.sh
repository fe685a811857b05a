
restarts=${SLURM_RESTART_COUNT:-0}
warnings=0
step=
gate="$HOLDFAST_RUN_DIR/gate-$SLURM_JOB_ID."
port=$((29500 + SLURM_JOB_ID % 3000))

print() { echo "holdfast: $*" >&2; }

end() {  # end STATUS MESSAGE
    print "$2"
    exit "$1"
}

requeue() {  # requeue STATUS REASON
    print "$2: job $SLURM_JOB_ID is requeued after start $((restarts + 1))"
    if scontrol requeue "$SLURM_JOB_ID"; then
        sleep 60  # until Slurm ends this script: its own end is not that of the job
    else
        print "Slurm refused to requeue the job: submit it again"
    fi
    exit "$1"
}

# Slurm's warning before the time limit: srun forwards it, and the workers save and exit.
warn() {
    warnings=$((warnings + 1))
    if [ -n "$step" ]; then kill -USR1 "$step"; fi
}
trap warn USR1
# At SIGTERM (preemption, requeue, scancel) Slurm signals the workers itself and decides what
# follows; this script waits for them.
terminated=no
trap 'terminated=yes' TERM

# Sets "hosts" to healthy nodes of this job.
select_hosts() {
    mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    if [ "$use_gate" = yes ]; then
        rm -f "$gate"passing.txt "$gate"failing.txt
        srun --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1 --output=0 \
            "${srun_options[@]}" "${holdfast[@]}" check --master-port "$port" "${check[@]}" --hosts-file "$gate" \
            >"$gate"report.txt 2>&1 </dev/null
        if [ ! -e "$gate"passing.txt ]; then
            end 1 "the health gate did not finish: see ${gate}report.txt, or submit with --no-gate"
        fi
        mapfile -t hosts <"$gate"passing.txt
        while read -r host; do
            print "$host failed the health gate: see ${gate}report.txt"
        done <"$gate"failing.txt
    fi
    if [ "${#hosts[@]}" -lt "$nodes" ]; then
        end 1 "${#hosts[@]} of $nodes nodes are healthy: submit again with --exclude or --spare-nodes"
    fi
    hosts=("${hosts[@]:0:nodes}")
}

# Runs one launcher on each node; sets "status" to the highest exit status.
run_job() {
    local list
    list=$(IFS=,; echo "${hosts[*]}")
    srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --nodelist="$list" \
        --kill-on-bad-exit=0 --wait=0 "${srun_options[@]}" "${holdfast[@]}" run \
        --nnodes "$nodes" --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID.$restarts" \
        --rdzv-endpoint "${hosts[0]}:$port" "${run[@]}" &
    step=$!
    while :; do  # a signal interrupts `wait`, which then returns 128 + its number
        wait "$step"
        status=$?
        kill -0 "$step" 2>/dev/null || break
    done
    wait "$step"
    local again=$?
    if [ "$again" -lt 127 ]; then status=$again; fi  # bash 5.2 may not know it any more
}

if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
mkdir -p "$HOLDFAST_RUN_DIR"
select_hosts
if [ "$warnings" -gt 0 ]; then requeue 1 "the time limit is near"; fi
run_job
if [ "$terminated" = yes ]; then end "$status" "Slurm ended start $((restarts + 1)) of the job"; fi
case $status in
    0) exit 0 ;;
    93) end 93 "restarts made no progress: the job is not requeued" ;;
esac
if [ "$warnings" -gt 0 ]; then requeue "$status" "the time limit is near"; fi
if [ "$restarts" -lt "$requeue_failures" ]; then
    requeue "$status" "the job failed with status $status"
fi
end "$status" "the job failed with status $status"
