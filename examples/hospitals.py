"""Which hospital helps, and which harms? A risk model from the records of four simulated hospitals, in a plain loop.

    python examples/hospitals.py      prints the audit, and the scores with equal and with learned weights

A patient has ten measurements, and an event or none. `north` and `east` record them as they are. `west` has few
patients. `south` has coded its events wrongly: in 40 % of its records the event says the opposite.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import steelyard as sy

# All settings were fixed before any result was seen.
PATIENTS = {"north": 600, "east": 600, "south": 600, "west": 60}
WRONG = {"south": 0.4}  # part of a hospital's events that say the opposite
MEASUREMENTS = 10
TEST_PATIENTS = 2000  # with true events
BATCH = 32  # patients of each hospital
STEPS = 600
LEARNING_RATE = 1e-3

Records = tuple[Tensor, Tensor]


def draw_records(patients: int, wrong: float, effects: Tensor, generator: torch.Generator) -> Records:
    """The measurements of patients, and their events."""
    measurements = torch.randn(patients, MEASUREMENTS, generator=generator)
    risk = measurements @ effects + measurements[:, 0] * measurements[:, 1]
    events = torch.rand(patients, generator=generator) < risk.sigmoid()
    opposite = torch.rand(patients, generator=generator) < wrong
    return measurements, (events ^ opposite).float()[:, None]


def train(weighting: sy.Weighting, seed: int) -> tuple[sy.Balancer, float]:
    """Train on all hospitals; the balancer, and the mean loss on patients with true events."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    effects = torch.randn(MEASUREMENTS, generator=generator)
    hospitals = {}
    for name, patients in PATIENTS.items():
        hospitals[name] = draw_records(patients, WRONG.get(name, 0.0), effects, generator)
    test = draw_records(TEST_PATIENTS, 0.0, effects, generator)

    model = nn.Sequential(nn.Linear(MEASUREMENTS, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
    criterion = binary_cross_entropy_with_logits
    balancer = sy.Balancer(tuple(hospitals), loss=criterion, weighting=weighting, probe=sy.FirstOrder())
    for _ in range(STEPS):
        batch = {}
        for name, (measurements, events) in hospitals.items():
            rows = torch.randint(len(events), (BATCH,), generator=generator)
            batch[name] = (measurements[rows], events[rows])
        loss = balancer(model, batch, optimizer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    measurements, events = test
    with torch.no_grad():
        return balancer, float(criterion(model(measurements), events))


def main(seeds: range = range(5)) -> None:
    """Train with equal and with learned weights; print the audit of the first run, and the losses."""
    for seed in seeds:
        _, equal = train(sy.Fixed(), seed)
        balancer, learned = train(sy.Evidence(), seed)
        if seed == seeds[0]:
            print(balancer.audit())
        print(f"seed {seed}: loss on true events {equal:.4f} with equal weights, {learned:.4f} with learned ones")


if __name__ == "__main__":
    main()
