"""Compare SGLang's Triton kernel of masks, in Triton's interpreter on the CPU, with ours."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported


def main() -> None:
    import numpy as np
    import torch

    from deployments.sglang.masks import forbid, mask_kernel

    kernel = mask_kernel(torch.device("cuda"))
    rng = np.random.default_rng(0)
    for rows, tokens in ((1, 33), (3, 1064), (2, 5000)):
        bits = rng.integers(0, 2, (rows, -(-tokens // 32) * 32)).astype(bool)
        mask = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
        ours, theirs = torch.zeros((rows, tokens)), torch.zeros((rows, tokens))
        forbid(ours, mask)
        kernel(theirs, mask)
        assert torch.equal(ours, theirs) and (ours.isfinite().numpy() == bits[:, :tokens]).all()


if __name__ == "__main__":
    main()
