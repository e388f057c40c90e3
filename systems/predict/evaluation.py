"""Models an evaluation: a forward pass over the held-out examples, an optional beam search, and the host's part."""

from __future__ import annotations

import math

from systems.predict import compute
from systems.predict.compiled import Scaled
from systems.predict.compute import Constants
from systems.predict.hardware import Machine
from systems.predict.kernel_costs import Network
from systems.predict.workload import Workload


def device_seconds(
    workload: Workload, network: Network, machine: Machine, constants: Constants, made: Scaled | None = None
) -> float:
    """Seconds of one evaluation on the accelerators: padded batches, split among the replicas.

    0 if logs give the time of the whole evaluation. With `made`, the compiled evaluation program is used if there is
    one.
    """
    if workload.whole_evaluation:
        return 0.0
    batches = math.ceil(workload.eval_examples / workload.eval_batch)
    compiled = made and made.program.evaluation(machine, made.scale)
    if compiled:
        return batches * compiled
    mine = workload.eval_batch / workload.replicas
    precision = workload.precision
    if workload.decode_steps and network.decode is not None:
        # The encoder has a third of the forward pass's products; every step reads the decoder's weights.
        encoder = compute.seconds(network.forward, mine, machine, constants, precision).sum() / 3
        step = compute.seconds(network.decode, mine * workload.beams, machine, constants, precision).sum()
        return batches * float(encoder + workload.decode_steps * step)
    shares = compute.partition_shares(network.forward, workload.partitions, workload.spmd)
    return batches * float(
        compute.seconds(network.forward, mine, machine, constants, precision, shares).sum()
    )


def host_seconds(workload: Workload, evaluations: int) -> float:
    """Host seconds of the evaluations that delay the run: only the last one, unless evaluations block training."""
    return workload.host_evaluation * (evaluations if workload.blocking else 1)
