"""TRPO as Frans & Hafner ran it (2016), as a net and an algorithm of one's own.

    walle run -cn parallel_trpo_2016                                             # a sweep
    cd examples/parallel_trpo_2016
    walle run algo=parallel_trpo_2016 net=parallel_trpo_2016 env=reacher         # a single run

docs/own_classes.md explains how `walle` finds the package and its conf/.
"""
