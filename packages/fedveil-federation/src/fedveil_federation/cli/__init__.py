"""The commands of a federation across machines; each is a module of this package."""

COMMANDS = {
    "federation": "across machines: found a federation, see who is there, run a recipe",
    "site": "across machines: an owner's side; join, start, ledger, pause, leave",
    "hub": "across machines: the process that carries out a federation's runs",
}
