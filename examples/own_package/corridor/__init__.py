"""A package outside of walle: an environment, a net, an algorithm and a callback of one's own.

    cd examples/own_package
    walle run env=corridor net=waves algo=weighted callbacks=[corridor.callback:Solved]
    walle run env=corridor net=waves algo=dqn

docs/own_classes.md explains each part.
"""
