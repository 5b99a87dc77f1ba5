"""When do learned weights pay? Many small problems, methods and seeds; gains over equal weights, regret to a sweep."""
