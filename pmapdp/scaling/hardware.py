"""Named hardware: published figures of devices and of the links between them, each with its source.

Bandwidths are the vendors' peak figures. What a program attains of them is less; see `pmapdp.scaling.predict`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """Devices that are joined alike: those of a node, or the nodes of a cluster."""

    devices: int  # the most members that this level joins; a member is a device, or a whole group of the level inside
    latency: float  # seconds that a message takes beside its bytes
    bandwidth: float  # bytes/s that one device sends over all its links of this level while it receives as many
    axes: int = 1  # of a torus, along each of which lies a ring; 1 is a single ring
    wraps_from: int = 1  # members along an axis from which on its ends are joined; a shorter one has half the bandwidth
    trees: bool = True  # whether the library also runs trees here, as it can where a switch joins any two members


@dataclass(frozen=True)
class Hardware:
    """A device and its surroundings."""

    title: str
    peak: dict[str, float]  # FLOP/s of dense matrix products by the dtype, with JAX's default precision
    memory_bandwidth: float  # bytes/s between the device and its own memory
    levels: tuple[Level, ...]  # from the inside out


# NVIDIA's datasheets of the H100 Tensor Core GPU and of the DGX H100. Latencies: NCCL's own cost model, NVIDIA/nccl
# src/graph/tuning.cc, hwLat, ring with protocol LL128. LL128 carries 120 bytes of data in each 128; NVLink gives
# 450 GB/s each way, and every GPU of a DGX H100 has a network card of 400 Gbit/s. JAX multiplies float32 in TF32 there.
H100 = Hardware(
    "NVIDIA H100 SXM, nodes of 8 joined by NVLink, one InfiniBand NDR card of 400 Gbit/s per GPU",
    peak={"bfloat16": 989.4e12, "float32": 494.7e12},
    memory_bandwidth=3.35e12,
    levels=(Level(8, 1.9e-6, 450e9 * 120 / 128), Level(1024, 4.0e-6, 50e9 * 120 / 128)),
)

# NVIDIA's datasheets of the A100 80GB SXM and of the DGX A100: NVLink gives 300 GB/s each way, and every GPU has a
# network card of 200 Gbit/s. Latencies as above.
A100 = Hardware(
    "NVIDIA A100 80GB SXM, nodes of 8 joined by NVLink, one InfiniBand HDR card of 200 Gbit/s per GPU",
    peak={"bfloat16": 312e12, "float32": 156e12},
    memory_bandwidth=2.039e12,
    levels=(Level(8, 1.9e-6, 300e9 * 120 / 128), Level(1024, 4.0e-6, 25e9 * 120 / 128)),
)

# Google Cloud's documentation of TPU v5e and v5p. Latencies in a pod: Austin et al., "How to Scale Your Model", 2025,
# jax-ml.github.io/scaling-book. JAX multiplies float32 on a TPU in bfloat16 by default, so both have one peak. Google
# gives the interconnect's bandwidth per chip for both directions together: 400 and 1,200 GB/s.
TPU_V5E = Hardware(
    "Google TPU v5e, pods of 16 x 16 chips in a 2D torus, joined by the data centre's network",
    peak={"bfloat16": 197e12, "float32": 197e12},
    memory_bandwidth=819e9,
    levels=(
        Level(256, 1e-6, 200e9, axes=2, wraps_from=16, trees=False),
        # 6.4 Tbit/s per pod of 256 chips; the latency, through two hosts and the network, is assumed.
        Level(64, 50e-6, 6.4e12 / 8 / 256),
    ),
)

TPU_V5P = Hardware(
    "Google TPU v5p, up to 6,144 chips of a pod in a 3D torus",
    peak={"bfloat16": 459e12, "float32": 459e12},
    memory_bandwidth=2765e9,
    levels=(Level(6144, 1e-6, 600e9, axes=3, wraps_from=4, trees=False),),
)

HARDWARE = {"a100": A100, "h100": H100, "tpu-v5e": TPU_V5E, "tpu-v5p": TPU_V5P}
