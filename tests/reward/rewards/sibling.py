def points(right):
    return 2.0 if right else -2.0
