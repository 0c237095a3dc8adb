"""The neighbour test: does the program do what its epsilon was computed for?

A guarantee says: take two data sets that differ in one unit (a client, or a record); what leaves
is hard to tell apart, because the noise was fitted to the most that one unit can move. This
package tests that sentence without any formula of its own. It draws a random federation, recipe,
engine and neighbour, runs the *real program* on both and looks at the integers that enter the
noise (`make fuzz`; `make test` runs a few thousand pairs):

(a) every other client's integers are the same, bit for bit, and so are the floats they come from;
(b) the sum that meets a draw of noise moves by no more, measured in the noise that is really
    drawn, than the accounted mechanism says (`plan.releases`);
(c) what is public (plan, guarantee, clip, grid, noise, schedule, size of the model) does not move;
(d) a run killed at any moment and resumed uses no client more often than accounted;
(e) whatever follows the noise depends on noisy values alone: given the same ones, both runs go on
    with the same weights, bit for bit.

How the two runs are coupled (`coupling`). A protected run draws from the operating system. Here its
streams are keyed by (case, purpose, round, name of the client) instead; names, unlike positions,
do not shift when a client comes or goes. And where the first run has drawn noise, the second
gets the *same noisy value*, which is what the proof of adaptive composition conditions on; so
rounds and noisy local steps can be compared one after the other. The guarantee is about the sum
just before.

    cases       one integer -> a federation and a recipe      values      the nasty numbers
    worlds      a federation through arrays, CSV or disk      recording   notes what meets noise
    coupling    streams by name; noisy values replayed        checks      (a), (b), (c), (e)
    resuming    (d)                                           planted     bugs that must be found

A failure prints the case's number; `python -m tests.neighbours --seed N` runs it again.
"""
