"""Computes the stages of a ResNet with PyTorch: python torch_resnet.py FILE IMAGES.npy OUT.npz EPSILON STRIDE...

FILE is a state dict with torchvision's names. IMAGES is [b, h, w, 3] in float64. OUT holds the stages' outputs,
[b, c, h, w] each. Give one STRIDE per stage. The script runs in its own interpreter, which needs only torch and numpy.
"""

import sys


def main(weights_path: str, images_path: str, out: str, epsilon: str, *strides: str) -> None:
    """Writes the stages' outputs."""
    import numpy as np
    import torch
    from torch.nn import functional

    weights = torch.load(weights_path, map_location="cpu", weights_only=True)
    weights = {name: value.double() for name, value in weights.items()}

    def conv(x: torch.Tensor, name: str, norm: str, stride: int = 1) -> torch.Tensor:
        kernel = weights[f"{name}.weight"]
        x = functional.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        moments = weights[f"{norm}.running_mean"], weights[f"{norm}.running_var"]
        return functional.batch_norm(
            x, *moments, weights[f"{norm}.weight"], weights[f"{norm}.bias"], False, 0.0, float(epsilon)
        )

    def block(x: torch.Tensor, name: str, stride: int) -> torch.Tensor:
        count = 3 if f"{name}.conv3.weight" in weights else 2
        y = x
        for i in range(1, count + 1):
            # A bottleneck's 3x3 convolution has the stride; in a basic block, the first convolution has it.
            y = conv(y, f"{name}.conv{i}", f"{name}.bn{i}", stride if i == count - 1 else 1)
            y = functional.relu(y) if i < count else y
        if f"{name}.downsample.0.weight" in weights:
            x = conv(x, f"{name}.downsample.0", f"{name}.downsample.1", stride)
        return functional.relu(x + y)

    with torch.no_grad():
        x = torch.from_numpy(np.load(images_path)).permute(0, 3, 1, 2)
        x = functional.max_pool2d(functional.relu(conv(x, "conv1", "bn1", 2)), 3, 2, 1)
        stages = []
        for stage, stride in enumerate(map(int, strides), 1):
            number = 0
            while f"layer{stage}.{number}.conv1.weight" in weights:
                x = block(x, f"layer{stage}.{number}", stride if number == 0 else 1)
                number += 1
            stages.append(x.numpy())
    np.savez(out, *stages)


if __name__ == "__main__":
    main(*sys.argv[1:])
