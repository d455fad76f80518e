// Command kubectl is the standard kubectl, built from the same module as the apiserver.
package main

import (
	"os"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // auth plugins that a kubeconfig may name
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	// Set the verbosity first, because plugins and .kuberc are read while the command is being
	// built.
	_, err := logs.GlogSetter(cmd.GetLogVerbosity(os.Args))
	util.CheckErr(err)
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
