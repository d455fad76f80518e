{{/* Checks of the pods, which the apiserver would refuse, and of values that have no effect on them. */}}
{{- define "watchproxy.validatePods" -}}
{{- $v := .Values -}}
{{- include "watchproxy.validateStrategy" $v -}}
{{- $containers := list "watchproxy" -}}
{{- range tuple "initContainers" "extraContainers" -}}
{{- $field := . -}}
{{- range default list (get $v $field) -}}
{{- if has .name $containers -}}
{{- fail (printf "%s: the pod has another container %s: give it another name" $field .name) -}}
{{- end -}}
{{- $containers = append $containers .name -}}
{{- end -}}
{{- end -}}
{{- $volumes := list "watchproxy-config" "watchproxy-tls" "watchproxy-client" -}}
{{- range $v.extraVolumes -}}
{{- if has .name $volumes -}}
{{- fail (printf "extraVolumes: the pod has another volume %s: give it another name" .name) -}}
{{- end -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- $paths := list "/etc/watchproxy/config" "/etc/watchproxy/tls" -}}
{{- range $v.extraVolumeMounts -}}
{{- if and (ne $v.kind "Sidecar") (not (has .name $volumes)) -}}
{{- fail (printf "extraVolumeMounts: there is no volume %s: add it to extraVolumes" .name) -}}
{{- end -}}
{{- if has .mountPath $paths -}}
{{- fail (printf "extraVolumeMounts: something else is mounted at %s: mount %s elsewhere" .mountPath .name) -}}
{{- end -}}
{{- $paths = append $paths .mountPath -}}
{{- end -}}
{{- if ne $v.kind "Deployment" -}}
{{- if ne (int $v.replicaCount) 2 -}}
{{- fail (printf "replicaCount: it has no effect on a %s: leave it out" $v.kind) -}}
{{- end -}}
{{- with $v.podDisruptionBudget -}}
{{- if and .enabled (or (ne (toString .minAvailable) "") (ne (toString .maxUnavailable) "1")) -}}
{{- fail (printf "podDisruptionBudget: a %s has none: leave minAvailable and maxUnavailable out" $v.kind) -}}
{{- end -}}
{{- end -}}
{{- range $v.topologySpreadConstraints -}}
{{- if not (has .topologyKey (list "topology.kubernetes.io/zone" "kubernetes.io/hostname")) -}}
{{- fail (printf "topologySpreadConstraints: they have no effect on a %s: leave them out" $v.kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $v.kind "Sidecar") $v.updateStrategy -}}
{{- fail "updateStrategy: the pods of a Sidecar are the application's: leave it out" -}}
{{- end -}}
{{- end -}}

{{/* Checks of the update strategy by the apiserver's rules. Argument: the values. */}}
{{- define "watchproxy.validateStrategy" -}}
{{- $daemonSet := eq .kind "DaemonSet" -}}
{{- $other := ternary "OnDelete" "Recreate" $daemonSet -}}
{{- $type := default "RollingUpdate" (default dict .updateStrategy).type -}}
{{- if not (has $type (list "RollingUpdate" $other)) -}}
{{- fail (printf "updateStrategy.type: a %s has no %s: let it be RollingUpdate or %s" .kind $type $other) -}}
{{- end -}}
{{- with (default dict .updateStrategy).rollingUpdate -}}
{{- if ne $type "RollingUpdate" -}}
{{- fail (printf "updateStrategy.rollingUpdate: %s has none: leave it out, or let type be RollingUpdate" $type) -}}
{{- end -}}
{{- $zero := "^0+%?$" -}}
{{- $surge := toString (ternary .maxSurge (ternary 0 "25%" $daemonSet) (hasKey . "maxSurge")) | regexMatch $zero | not -}}
{{- $unavailable := toString (ternary .maxUnavailable (ternary 1 "25%" $daemonSet) (hasKey . "maxUnavailable")) | regexMatch $zero | not -}}
{{- if not (or $surge $unavailable) -}}
{{- fail "updateStrategy.rollingUpdate: no pod can be replaced: let maxSurge or maxUnavailable be at least 1" -}}
{{- end -}}
{{- if and $daemonSet $surge $unavailable -}}
{{- fail "updateStrategy.rollingUpdate: a DaemonSet has only one of maxSurge and maxUnavailable: set the other one to 0" -}}
{{- end -}}
{{- end -}}
{{- end -}}
