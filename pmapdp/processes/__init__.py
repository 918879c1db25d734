"""Several processes that train together: how they find each other, agree, stop, and end when one is lost.

`jax.distributed` connects them and watches over them; process 0 runs its coordination service. What they tell each
other travels as the arrays do: over gloo between CPUs, over NCCL between GPUs. Lesson 17 teaches this folder.
"""
