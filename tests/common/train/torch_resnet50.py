"""A ResNet-50 in PyTorch with torchvision's names: `python torch_resnet50.py FOLDER SIDE WIDTH POOL`.

Writes FOLDER/resnet50.pth, a state dict of random weights and moments, FOLDER/images.npy and FOLDER/logits.npy. POOL is
torchvision (one pixel of padding on each side) or same (TensorFlow's: none before the first window of an even side).
Needs torch alone, nothing of this project.
"""

import pathlib
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CLASSES = 7


class Bottleneck(nn.Module):
    """torchvision's block of version 1.5: the stride is on the 3x3 convolution."""

    def __init__(self, inputs: int, width: int, stride: int, project: bool):
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        if project:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )
        else:
            self.downsample = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet50(nn.Module):
    """Pictures [b, 3, h, w] -> logits [b, CLASSES]."""

    def __init__(self, width: int, pool: str):
        super().__init__()
        self.pool = pool
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        inputs = width
        for stage, blocks in enumerate((3, 4, 6, 3)):
            stack = []
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                stack.append(Bottleneck(inputs, width * 2**stage, stride, not block))
                inputs = 4 * width * 2**stage
            setattr(self, f"layer{stage + 1}", nn.Sequential(*stack))
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        before = 1 if self.pool == "torchvision" else x.shape[-1] % 2
        x = functional.max_pool2d(functional.pad(x, [before, 1, before, 1], value=-torch.inf), 3, 2)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean([2, 3]))


def main(folder: pathlib.Path, side: int, width: int, pool: str) -> None:
    torch.manual_seed(5)
    network = ResNet50(width, pool).eval()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for values in (layer.weight, layer.running_var):
                nn.init.uniform_(values, 0.5, 1.5)
            for values in (layer.bias, layer.running_mean):
                nn.init.normal_(values, std=0.2)
    torch.save(network.state_dict(), folder / "resnet50.pth")
    images = torch.randn(4, 3, side, side)
    with torch.inference_mode():
        logits = network(images)
    np.save(folder / "images.npy", images.numpy().transpose(0, 2, 3, 1))
    np.save(folder / "logits.npy", logits.numpy())


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
