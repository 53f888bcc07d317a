"""A convolutional network trained in a loop over epochs: batch norm, dropout, random augmentation and a scheduler."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Shapes(Dataset):
    """Images of noise with a bright bar, shifted at random, and the direction of the bar."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        image = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(number))
        image[:, 3] += number % 2
        image[:, :, 3] += 1 - number % 2
        return image.roll(int(torch.randint(0, 5, (1,))), dims=1 + number % 2), number % 2


class Network(nn.Module):
    """A small convolutional network."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 2)
        )

    def forward(self, images):
        return self.layers(images)


torch.manual_seed(7)
torch.set_num_threads(1)
model = Network()
sampler = None
data = Shapes(72)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
    sampler = DistributedSampler(data)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
loader = DataLoader(data, batch_size=4, shuffle=sampler is None, sampler=sampler)
for epoch in range(4):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
