"""How fast a device multiplies matrices at best, which utilisation is measured against.

The table holds what makers publish for dense products, sparsity not counted. A device outside it, such as any CPU, is
measured once by a large product.
"""

from __future__ import annotations

import functools
import time

import torch

_HALF, _TF32, _FP32 = torch.bfloat16, "tf32", torch.float32

# Dense Tera-operations a second: bfloat16 (float16 is the same), TF32, float32 without tensor cores.
# H100, H200: https://resources.nvidia.com/en-us-tensor-core (H100 datasheet: SXM 989, PCIe 756, NVL 835);
# A100: https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet.pdf
# L40S, L4, A10, RTX: data sheets of the same name at https://www.nvidia.com; B200, GB200: Blackwell architecture brief
# MI300X, MI325X: https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html
# A MI250X shows as two devices of half its numbers.
# The first name that is part of the device's own name decides, so longer ones stand first.
_TERA: tuple[tuple[str, float, float, float], ...] = (
    ("GB200", 2500.0, 1250.0, 80.0),
    ("B200", 2250.0, 1125.0, 75.0),
    ("H200", 989.4, 494.7, 66.9),
    ("H100 NVL", 835.5, 417.7, 60.0),
    ("H100 PCIe", 756.5, 378.2, 51.2),
    ("H100", 989.4, 494.7, 66.9),
    ("H800", 989.4, 494.7, 66.9),
    ("H20", 148.0, 74.0, 44.0),
    ("A100", 312.0, 156.0, 19.5),
    ("A800", 312.0, 156.0, 19.5),
    ("L40S", 362.05, 183.2, 91.6),
    ("L40", 181.05, 90.5, 90.5),
    ("L4", 121.0, 60.0, 30.3),
    ("A10G", 70.0, 35.0, 31.2),
    ("A10", 125.0, 62.5, 31.2),
    ("A40", 149.7, 74.8, 37.4),
    ("A6000", 154.8, 77.4, 38.7),
    ("RTX 4090", 165.2, 82.6, 82.6),
    ("RTX 3090", 71.0, 35.6, 35.6),
    ("MI325X", 1307.4, 653.7, 163.4),
    ("MI300X", 1307.4, 653.7, 163.4),
    ("MI250X", 191.5, 47.9, 47.9),
)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the floating-point operations a second that a device can make in a number format.

    From the table where the device's name is in it, and otherwise measured, once a process.
    """
    known = published_flops(torch.cuda.get_device_name(device), dtype) if device.type == "cuda" else None
    return known or _measured(str(device), dtype)


def published_flops(name: str, dtype: torch.dtype) -> float | None:
    """Return what the maker of a device of this name gives; None for one that is not in the table.

    A float32 product runs in TF32 where torch may use it (``torch.set_float32_matmul_precision``).
    """
    for known, half, tf32, full in _TERA:
        if known.lower() in name.lower():
            if dtype.itemsize == 2:
                return half * 1e12
            return (full if torch.get_float32_matmul_precision() == "highest" else tf32) * 1e12
    return None


@functools.cache
def _measured(device: str, dtype: torch.dtype) -> float:
    """Operations a second of a square product with torch's present number of threads; the best of five."""
    size = 4096 if device.startswith("cuda") else 512
    generator = torch.Generator(device).manual_seed(0)
    left, right = torch.randn(2, size, size, device=device, generator=generator).to(dtype)
    return float(2 * size**3 / min(_seconds(left, right) for _ in range(5)))


def _seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    begun = time.perf_counter()
    product = left @ right
    if product.is_cuda:
        torch.cuda.synchronize(product.device)
    return time.perf_counter() - begun
