#!/bin/bash
# Train with several processes that Open MPI starts:
#
#     bash deploy/mpirun.sh -np 2 --host node1,node2 -- --strategy jit --workdir /shared/runs/first     # CPUs
#     bash deploy/mpirun.sh --map-by ppr:1:node --host node1,node2 -x JAX_LOCAL_DEVICE_IDS=0,1,2,3,4,5,6,7 \
#         -- --strategy jit --devices 8 --per-device-batch-size 64 --workdir /shared/runs/first     # GPUs
#
# Put mpirun's flags before --, and the flags of pmapdp.train after it. Edit the names of your nodes. Every node
# needs your environment at the same path, the same current folder, and a workdir that all share. Call the script in
# that environment.
#
# JAX_LOCAL_DEVICE_IDS gives a process all GPUs of its node. Without it JAX takes ONE GPU for each process, so start
# eight: --map-by ppr:8:node --host node1:8,node2:8 -- --devices 1 ...
#
# Which Open MPI do you have (mpirun --version)?
#
#   4      works with every JAX that we test. It ends with the status of the first process that fails, up to two minutes
#          later, because the others get their 60 seconds twice. After a SIGTERM to mpirun it ends with 1.
#   5      needs Python 3.12, jax 0.11.2 or newer and pip install mpi4py. In 5.0 a SIGTERM to mpirun ended the processes
#          before they could save, so add --checkpoint-every 500 to the flags of pmapdp.train, and you lose at most 500
#          updates.
launcher=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    launcher+=("$1")
    shift
done
if [ $# -eq 0 ]; then
    echo "error: write -- between the flags of mpirun and the flags of pmapdp.train, for example" >&2
    echo "    bash deploy/mpirun.sh -np 2 -- --strategy jit --workdir /shared/runs/first" >&2
    exit 2
fi
shift

# --bind-to none: else each process gets a single core.
# odls_base_sigkill_timeout: 60 seconds to save after SIGTERM, not 1.
# The full path makes every node use the Python of your environment.
exec mpirun --bind-to none --mca odls_base_sigkill_timeout 60 "${launcher[@]}" \
    "$(command -v python)" -m pmapdp.train "$@" --distributed
