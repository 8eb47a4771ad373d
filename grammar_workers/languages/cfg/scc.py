"""Strongly connected components of a directed graph (Tarjan, 1972), computed without recursion."""

from __future__ import annotations


def components(graph: list[list[int]]) -> list[list[int]]:
    """Return the strongly connected components of a directed graph in reverse topological order.

    Args:
        graph: `graph[node]` lists the successors of `node`. Nodes are numbered from 0 to len(graph) - 1.

    Returns:
        The nodes of each component. A component comes after all other components that can be reached from it.
    """
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_nodes: list[int] = []
    is_open = [False] * len(graph)
    found: list[list[int]] = []
    for root in range(len(graph)):
        if root in order:
            continue
        path = [(root, iter(graph[root]))]
        order[root] = lowest[root] = len(order)
        open_nodes.append(root)
        is_open[root] = True
        while path:
            node, following = path[-1]
            for target in following:
                if target not in order:
                    order[target] = lowest[target] = len(order)
                    open_nodes.append(target)
                    is_open[target] = True
                    path.append((target, iter(graph[target])))
                    break
                if is_open[target]:
                    lowest[node] = min(lowest[node], order[target])
            else:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
                if lowest[node] == order[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(open_nodes.pop())
                        is_open[component[-1]] = False
                    found.append(component)
    return found
