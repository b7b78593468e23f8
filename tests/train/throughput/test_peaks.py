"""What a device can do at best."""

from __future__ import annotations

import pytest
import torch

from srpo_train.throughput.peaks import peak_flops, published_flops


@pytest.mark.parametrize(
    "name, dtype, tera",
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989.4),
        ("NVIDIA H100 PCIe", torch.bfloat16, 756.5),
        ("NVIDIA H100 NVL", torch.float16, 835.5),
        ("NVIDIA H200", torch.bfloat16, 989.4),
        ("NVIDIA H20", torch.bfloat16, 148.0),
        ("NVIDIA GB200", torch.bfloat16, 2500.0),
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, 312.0),
        ("NVIDIA A100-SXM4-80GB", torch.float32, 19.5),
        ("NVIDIA L40S", torch.bfloat16, 362.05),
        ("NVIDIA L4", torch.bfloat16, 121.0),
        ("AMD Instinct MI300X", torch.bfloat16, 1307.4),
    ],
)
def test_published_numbers_by_name_and_format(name, dtype, tera):
    assert published_flops(name, dtype) == pytest.approx(tera * 1e12)


def test_a_float32_product_may_run_in_tf32():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert published_flops("NVIDIA H100 80GB HBM3", torch.float32) == pytest.approx(494.7e12)
    finally:
        torch.set_float32_matmul_precision(before)


def test_an_unknown_device_has_no_published_number():
    assert published_flops("Some CPU", torch.float32) is None


def test_a_cpu_is_measured_once():
    first = peak_flops(torch.device("cpu"), torch.float32)
    assert 1e8 < first < 1e14
    assert peak_flops(torch.device("cpu"), torch.float32) == first
