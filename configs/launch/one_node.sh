#!/usr/bin/env bash
# One machine: a process for each of its GPUs (or as many as you like on CPUs).
#   bash configs/launch/one_node.sh configs/tldr.yaml steps=20
# If a process is killed, all are started anew, up to three times, and the run resumes from its last checkpoint.
set -euo pipefail

processes=${PROCESSES:-$(nvidia-smi --list-gpus 2>/dev/null | wc -l)}
exec torchrun --standalone --nproc-per-node "$((processes > 0 ? processes : 2))" --max-restarts 3 \
    -m burnish train "$@"
