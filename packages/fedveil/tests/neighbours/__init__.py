"""The neighbour test: does the program do what its epsilon was computed for?

A guarantee says: take two data sets that differ in one unit (a client, or a record); what leaves
is hard to tell apart, because the noise was fitted to the most that one unit can move. This
package tests that sentence without any formula of its own. It draws a random federation, recipe,
engine and neighbours, runs the *real program* on all of them and looks at the integers that enter
the noise (`make fuzz`; `make test` runs a few thousand pairs):

(a) every other client's integers are the same, bit for bit, and so are the floats they come from;
(b) the sum that meets a draw of noise moves by no more, measured in the noise that is really
    drawn, than the accounted mechanism says (`plan.releases`);
(c) what is public (plan, guarantee, clip, grid, noise, schedule, size of the model) does not move;
(d) a run killed at any moment and resumed uses no client more often than accounted;
(e) whatever follows the noise depends on noisy values alone: given the same ones, both runs go on
    with the same weights, bit for bit;
(f) and so does everything that a run writes or shows;
(s) every record, person or client that is sampled in secret tosses a coin of its own in every step;
(r) a refusal is something that is shown: both worlds meet it, in the same words, or none does.

Three searches follow from each number. A deep case is a federation, recipe, method and engine, run
to the integers that meet the noise. A sheet is what people have: rows in a file, a frame, lists,
data sets, pictures; it is only read, so that thousands are cheap (`doors`). A job is a whole
command, `fedveil run --data` or an estimator's `fit`, of which exit code, terminal and files are
compared, and what it buys before it trains (`whole`).

Which neighbours, follows from the guarantee's unit and adjacency: a client replaced (its
contribution alone must keep to the clip where the statement is zero-out), removed or added where it
says add-remove; a record replaced, or made one that counts as zero. Who is there is public under
the other statements; then a client that comes or goes must leave the others' training as it was.
Only certified guarantees are claims; whether there is one must not depend on the unit either.

A case is up to eighteen runs: three places, each with two or three units that can stand there. Any
two runs that differ in one place are a pair, unless other pairs imply all that it could show.

How the two runs are coupled. A protected run draws from the operating system. Here its streams are
keyed by (case, purpose, round, name of the client) instead; names, unlike positions, do not shift
when a client comes or goes. And where the first run has drawn noise, the second gets the *same*
noisy value, which is what the proof of adaptive composition conditions on: so rounds, and noisy
local steps within a round, are compared one after the other, each with what it adds to the cost.

    cases, recipes   one integer -> a case             recording   notes what meets the noise
    values           ordinary and nasty numbers        checks      (a), (b), (c), (e)
    worlds           a case through the program        resuming    (d)
    coupling         streams by name                   written     (f)
    variants         a case's runs and their pairs     whole       commands, and what they show
    doors            every way in, read                planted     bugs that must be found
    search           all of it for one number

A failure prints the case's number; `python -m tests.neighbours --seed N` runs it again.
"""
