// Command kubenode runs the parts of a cluster other than the apiserver, each as its own process:
//
//	kubenode kube-controller-manager [flags]
//	kubenode kube-scheduler [flags]
//	kubenode kubelet --kubeconfig FILE --name NODE --root-dir DIR
//
// The first two are the real commands with their own flags. The third is the real kubelet on a fake
// container runtime, as in Kubernetes' scale tests: it registers the node, sends heartbeats, reads
// the pods of its node and the objects that they mount, and reports statuses, but no container runs.
// It has no server. All its files are in DIR.
//
// When a process has started, it prints one line on standard output: "kubenode started: NAME".
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 newKubeletCommand,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "kubenode: the first argument must be kube-controller-manager, kube-scheduler or kubelet")
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = os.Args[1:]
	if name != "kubelet" { // which first removes what it does not need
		started(name)
	}
	os.Exit(cli.Run(commands[name]()))
}

func started(name string) { fmt.Println("kubenode started: " + name) }
