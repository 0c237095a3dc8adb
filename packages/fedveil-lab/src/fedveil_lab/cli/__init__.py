"""The commands of the laboratory; each is a module of this package."""

COMMANDS = {
    "reproduce": "the papers' tables and figures, run again on real data",
    "bound": "local steps and rounds by the papers' convergence bounds",
    "audit": "attack what a recipe promises: lower bounds on epsilon",
    "attack": "what others could learn from uploads and models, in pictures",
    "check": "the true epsilon of a configuration written for another system",
}
