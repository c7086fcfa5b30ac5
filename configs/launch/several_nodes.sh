#!/usr/bin/env bash
# Several machines: the same command on each of them, at about the same time.
#   NODES=2 HEAD=10.0.0.1 bash configs/launch/several_nodes.sh configs/tldr.yaml run_name=two-nodes
# HEAD is the address of one of them, which the others can reach at PORT. Config, data and models are at the same
# paths everywhere; the run folder is that of the first process, and is not read by the others.
set -euo pipefail

: "${NODES:?how many machines}" "${HEAD:?the address of one of them}"
exec torchrun --nnodes "$NODES" --nproc-per-node "${PROCESSES:-8}" --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "$HEAD:${PORT:-29500}" --rdzv-id "${RUN_ID:-burnish}" \
    -m burnish train "$@"
