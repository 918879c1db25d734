#!/bin/bash
# Train with two processes that Open MPI starts:
#
#     bash deploy/mpirun.sh -np 2 --host node1,node2 -- --strategy jit --workdir /shared/runs/first
#
# Everything before -- is for mpirun, and everything after it for pmapdp.train. Open MPI 4 works with every JAX that we
# test. Version 5 needs jax 0.12 and pip install mpi4py. Only the launcher is used: the arrays travel by gloo (CPU) or
# NCCL (GPU).
#
# On GPUs JAX gives each process ONE GPU. So start a process for each GPU, or give all GPUs of a node to its process:
#
#     bash deploy/mpirun.sh --map-by ppr:8:node --host node1:8,node2:8 -- --strategy jit --devices 1 ...
#     bash deploy/mpirun.sh --map-by ppr:1:node --host node1,node2 -x JAX_LOCAL_DEVICE_IDS=0,1,2,3,4,5,6,7 \
#         -- --strategy jit --devices 8 ...
#
# What the settings below are for:
#
#   --bind-to none                      else each process gets a single core
#   orte_abort_on_non_zero_status 0     lets the other processes say why they end, and end by themselves
#   odls_base_sigkill_timeout 60        seconds to save after SIGTERM; the default is 1
launcher=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do launcher+=("$1"); shift; done
shift

exec mpirun --bind-to none --mca orte_abort_on_non_zero_status 0 --mca odls_base_sigkill_timeout 60 \
    "${launcher[@]}" python -m pmapdp.train "$@" --distributed
