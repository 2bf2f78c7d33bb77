"""The networks and the optimizer of WALL-E's code (2018), as a net and an algorithm of one's own.

    walle run -cn wall_e_2018                                      # the sweep, from anywhere
    cd examples/wall_e_2018
    walle run algo=wall_e_2018 net=wall_e_2018 env=hopper          # a single run

docs/own_classes.md explains how `walle` finds the package and its conf/.
"""
