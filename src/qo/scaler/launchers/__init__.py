"""What starts and ends workers: processes of this machine, Jobs of Kubernetes, commands of the user's."""
