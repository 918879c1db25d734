"""Several processes that train together: how they find each other, agree, stop, and notice that one is gone.

JAX's coordination service, which process 0 runs, connects them; the collectives are gloo's on CPUs and NCCL's on GPUs.
Lesson 17 teaches this folder.
"""
