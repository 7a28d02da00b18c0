"""Train a task by torch's own DistributedDataParallel over gloo, as a program: the reference.

``python -m tests.support.workloads.ddp TASK RANK WORLD STORE OUT``
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from testbed.gnn.options import MinibatchSpec
from testbed.workloads.module.scenario import ModuleTable
from testbed.workloads.module.train import ModuleTrainer

SEED = 3
SPEC = MinibatchSpec(batch_size=8, epochs=2, learning_rate=0.05, weight_decay=0.1, optimizer="sgd")


def main() -> None:
    task, rank, world, store, out = sys.argv[1:]
    dist.init_process_group("gloo", f"file://{store}", rank=int(rank), world_size=int(world))
    trainer = ModuleTrainer(ModuleTable(task=task), SPEC, int(rank), int(world), SEED)
    torch.manual_seed(SEED)
    model = trainer.task.model()
    together = DistributedDataParallel(model, find_unused_parameters=True)
    used = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(used, lr=SPEC.learning_rate, weight_decay=SPEC.weight_decay)
    trainer.model = together
    for epoch in range(SPEC.epochs):
        for step, seeds in enumerate(trainer.batches(epoch)):
            optimizer.zero_grad()
            trainer.loss(epoch, step, np.asarray(seeds)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    if rank == "0":
        torch.save(model.state_dict(), Path(out))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
