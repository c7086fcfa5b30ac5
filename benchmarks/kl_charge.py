"""Where and how the KL is charged, on a problem whose optimum is known in closed form (tests/known_optimum.py).

    python benchmarks/kl_charge.py            # about five minutes

A tiny model speaks three letters; the largest E[reward] - beta * KL of any policy is computed, and so is that of the
trained one. `reached` is how far of the way from the reference to the optimum PPO came in 150 steps, `possible` how far
any policy that is sampled so can come. Pairs of place and estimator that the config refuses are measured too: they are
why it does.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish import KLDivergence
from workload import machine, write_results

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import known_optimum

OFFERED = [("reward", "k1"), ("both", "exact"), ("loss", "exact"), ("loss", "k2"), ("loss", "k3")]
REFUSED = [("reward", "exact"), ("reward", "k2"), ("reward", "k3")]
PROBLEMS = [(0.2, 1.0), (0.05, 1.0), (0.2, 0.95), (0.05, 0.95)]  # beta, top_p


def measure(place: str, estimator: str, beta: float, top_p: float) -> dict[str, Any]:
    offered = (place, estimator) in OFFERED
    settings = {"kl_in": place, "kl_estimator": estimator} if offered else {}
    trainer = known_optimum.untrained(beta, top_p, **settings)
    if not offered:
        trainer.kl_divergence = KLDivergence(estimator)  # what no config can ask for
    trainer.train([known_optimum.PROMPT] * trainer.config.batch_size)
    return {"place": place, "estimator": estimator, "offered": offered, "beta": beta, "top_p": top_p} | asdict(
        known_optimum.way_of(trainer)
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows = []
    for place, estimator in (*OFFERED, *REFUSED):
        for beta, top_p in PROBLEMS if (place, estimator) in OFFERED[:3] else PROBLEMS[:1]:
            rows.append(measure(place, estimator, beta, top_p))
            print(rows[-1], flush=True)
    table = Table("place", "estimator", "beta", "top_p", "reached", "possible", "KL", "reported KL")
    for r in rows:
        numbers = (f"{r['reached']:.1%}", f"{r['possible']:.1%}", f"{r['kl']:.2f}", f"{r['reported_kl']:.2f}")
        table.add_row(r["place"], r["estimator"], f"{r['beta']:g}", f"{r['top_p']:g}", *numbers)
    Console(width=100).print(table)
    write_results("kl_charge", {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
