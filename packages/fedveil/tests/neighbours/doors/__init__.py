"""The ways in: everything that a federation can be made from, with one unit's values changed.

Training is not needed to see a reader go wrong. If two neighbouring sources become federations of
which all that is public is the same, and every other unit's examples are the same bit for bit, then
whatever the deep cases show of federations holds for them. So a pair here costs milliseconds, and
values can be drawn more wildly: what a person can write into a cell, what a type can hold, labels
that no class has, clients whose rows say nothing at all.

    rows      one integer -> owners, their rows, and other rows that can stand in one unit's place
    sources   rows -> a federation, through each door
    reading   what two federations may not differ in
    types     every type of NumPy and Python among every other
    pictures  folders of pictures
    names     class names that are bought: who publishes what, and how often
"""
