#!/bin/bash
# Train with two processes that Open MPI starts (version 4; version 5 needs pip install mpi4py as well):
#
#     bash deploy/mpirun.sh -np 2 --host node1,node2 -- mirrored --workdir /shared/runs/first
#
# What stands before -- is for mpirun. Only the launcher is used: the arrays travel by gloo (CPU) or NCCL (GPU).
#
#   --bind-to none                      else each process gets a single core
#   orte_abort_on_non_zero_status 0     lets the other processes say why they end, and end by themselves
#   odls_base_sigkill_timeout 60        seconds to save after SIGTERM; the default is 1
launcher=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do launcher+=("$1"); shift; done
shift

exec mpirun --bind-to none --mca orte_abort_on_non_zero_status 0 --mca odls_base_sigkill_timeout 60 \
    "${launcher[@]}" python -m pmapdp.train "$@" --distributed
