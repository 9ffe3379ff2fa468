package checkpoint_test

func child() bool { return false }
