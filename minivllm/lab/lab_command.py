"""`python -m minivllm lab`: run the experiments, print ours beside the published, keep the results.

The JSON file is written after every case, so an interrupted run has lost nothing: the same command
goes on where it stopped.
"""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minivllm.lab.experiment import Experiment, Options

# Each where it stands: the ones that measure need torch, and are imported only when they run.
MODELLED = {
    "memory": "memory:MEMORY", "sharing": "sharing:SHARING", "blocks": "blocks:BLOCKS",
    "orca": "orca:ORCA", "anyscale": "anyscale:ANYSCALE", "traces": "traces:TRACES",
    "headline": "headline:HEADLINE", "online": "online:ONLINE",
}  # fmt: skip
MEASURED = {
    "calibration": "calibration:CALIBRATION", "headline-here": "headline:HEADLINE_HERE",
}  # fmt: skip
PLACES = MODELLED | MEASURED
HEAD = f"{'':<62} {'ours':>9} {'':<13} {'published':>9}"


def add_options(parser: ArgumentParser) -> None:
    """The command's options, beside those that all commands have."""
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PLACES)}")
    parser.add_argument("--all", action="store_true", help="all that need no model")
    parser.add_argument("--measure", action="store_true", help="all that measure the real model")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the requests to run")
    parser.add_argument("--azure", metavar="FILE", help="the Azure conversation trace, a CSV file")
    parser.add_argument("--mooncake", metavar="FILE", help="the Mooncake trace, a JSONL file")
    parser.add_argument("--figures", metavar="FOLDER", help="draw the figures of what was run")


def lab(args: Namespace) -> dict[str, Any]:
    """Run what was asked for; returns what the JSON file holds."""
    names = chosen_names(args)
    if not names:
        for name, place in PLACES.items():
            print(f"{name:<14} {find(place).title}")
        return {}
    if args.scale <= 0:
        raise ValueError(f"--scale must be above 0, got {args.scale}")
    options = Options(args.scale, args.azure, args.mooncake, args.model, args.dtype)
    store = Store(args.json, options)
    experiments = [find(PLACES[name]) for name in names]
    try:
        run_all(experiments, options, store)
    finally:  # an interrupt, too, leaves what is done
        for experiment in experiments:
            print_findings(experiment, store)
    if args.figures:
        from minivllm.lab.figures import draw_all

        for path in draw_all(store.data, args.figures):
            print(f"drawn: {path}")
    return store.data


def chosen_names(args: Namespace) -> list[str]:
    """The experiments asked for, in their order. Raises ValueError for one that does not exist."""
    for name in args.names:
        if name not in PLACES:
            raise ValueError(f"experiment {name!r} is not one of {', '.join(PLACES)}")
    wanted = [*args.names, *(MODELLED if args.all else ()), *(MEASURED if args.measure else ())]
    return [name for name in PLACES if name in wanted]


def find(place: str) -> Experiment:
    """The experiment at "module:NAME"."""
    module, attribute = place.split(":")
    return getattr(import_module(f"minivllm.lab.experiments.{module}"), attribute)


class Store:
    """The results so far, in a file where one is named. Those of other options are not taken up."""

    def __init__(self, path: str | None, options: Options) -> None:
        self.path = Path(path) if path else None
        self.data: dict[str, Any] = {"options": asdict(options), "experiments": {}}
        if self.path is not None and self.path.exists():
            before = read_results(self.path)
            if before["options"] == self.data["options"]:
                self.data = before

    def cases(self, name: str) -> dict[str, Any]:
        """The results of an experiment by case; grows by `add`."""
        return self.data["experiments"].setdefault(name, {"cases": {}})["cases"]

    def add(self, experiment: Experiment, case: str, result: dict[str, Any]) -> None:
        """Keep one more result, on disk before this returns."""
        self.cases(experiment.name)[case] = result
        entry = self.data["experiments"][experiment.name]
        entry["title"], entry["conditions"] = experiment.title, experiment.conditions
        entry["findings"] = [asdict(f) for f in experiment.read(self.cases(experiment.name))]
        if self.path is not None:
            # Written beside and then renamed: an interrupt leaves the old file or the new one.
            beside = self.path.with_name(self.path.name + ".part")
            beside.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
            os.replace(beside, self.path)


def read_results(path: str | Path) -> dict[str, Any]:
    """The results of an earlier run. Raises ValueError for a file that holds none."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a file of lab results: {error}") from None
    if not isinstance(data, dict) or not {"options", "experiments"} <= set(data):
        raise ValueError(f"{path} is not a file of lab results")
    return data


def run_all(experiments: Sequence[Experiment], options: Options, store: Store) -> None:
    """Run all cases that have no result yet, with a progress bar over all of them."""
    todo = [
        (experiment, case)
        for experiment in experiments
        for case in experiment.cases
        if case not in store.cases(experiment.name)
    ]
    with tqdm(todo, unit="case", leave=False) as bar:
        for experiment, case in bar:
            bar.set_description(f"{experiment.name} {case}")
            store.add(experiment, case, experiment.run(case, options))


def print_findings(experiment: Experiment, store: Store) -> None:
    """One experiment's findings, a line each, ours beside theirs."""
    results = store.cases(experiment.name)
    if not results:
        return
    print(f"\n{experiment.title}\n({experiment.conditions})\n{HEAD}")
    for finding in experiment.read(results):
        print(finding)
    if missing := len(experiment.cases) - len(results):
        print(f"({missing} of {len(experiment.cases)} cases have not run)")
