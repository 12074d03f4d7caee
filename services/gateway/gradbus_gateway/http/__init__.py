"""What holds for every HTTP request: limits, hosts, parameters, problem documents."""
