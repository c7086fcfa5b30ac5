#!/usr/bin/env bash
# Ray: a job on one node of a cluster that is running already, with all GPUs of that node.
#   RAY_ADDRESS=http://127.0.0.1:8265 bash configs/launch/ray_job.sh config.yaml run_name=by-ray
# Ray launches torchrun and watches it, no more. The paths are those of the cluster's nodes.
set -euo pipefail

gpus=${GPUS:-8}
exec ray job submit --entrypoint-num-gpus "$gpus" -- \
    torchrun --standalone --nproc-per-node "$gpus" --max-restarts 3 -m burnish train "$@"
